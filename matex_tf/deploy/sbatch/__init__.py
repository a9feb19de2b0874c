"""Input and output of Slurm's commands: the job script, refused options, arrays, and messages with their meaning."""
