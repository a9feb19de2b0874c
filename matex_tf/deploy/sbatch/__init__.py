"""What sbatch is told, and what Slurm says: the script of a job, options that are taken, messages in words."""
