"""Submits, follows and cancels jobs of Slurm, PBS, LSF, Flux and Kubernetes. Imports neither MPI nor TensorFlow.

`command` (`matex submit`, `follow`, `cancel`) and `python` (`matex_tf.launch`) act in this order:

1. `options` merges the options of a job with the defaults of the user's files. Each kind of cluster has a class of
   options, such as `Slurm`.
2. `clusters` has the `Cluster` of each kind: `slurm`, `queues` (PBS, LSF, Flux) and `kubernetes`.
3. `Cluster.submit_job` makes the folder of the run (`run_folder`), writes a job script (`shell_text`) or an MPIJob, and
   submits it by the scheduler's command. `refusals` explains why a scheduler refuses a job.
4. `following` asks `Cluster.find_state` for the `State` of the job (`job`) until the job ends, and copies its output.

Terms of this package:

- job script: the shell script of a job. It starts `matex run`. A run that is warned of the time limit saves its state
  and ends with exit code 75; the script then has itself requeued (Slurm) or submits a successor job (the others).
- note: `job.json` in the folder of a run, which identifies its job.
- task: one of the runs of a job array of Slurm.
- MPIJob: an object that the MPI operator adds to Kubernetes. Its pods are a launcher, which runs `matex run`, and the
  workers, on which the ranks run. A launcher that fails is replaced by another one.
"""
