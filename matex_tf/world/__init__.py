"""Ranks, hosts and MPI: whether this process is a rank, which one, and where. Independent of TensorFlow.

`matex_tf.attach` calls the files in this order:

1. `task_environment`: did a launcher start this process as a task? One table says what each launcher tells its tasks in
   environment variables. `launcher_processes` finds the launcher among the ancestors of the process.
2. `world.get_world` starts MPI (`mpi_calls`; `missing_mpi` has the message if there is none, `time_limit` ends a start
   that takes too long), makes the `World`, and removes the launcher's variables (`launcher_variables`). `matex plan`
   gets the world of a rank whose peers do not exist (`phantom_rank`).
3. `placement` divides the cores and GPUs of a host among its ranks.

After a loss in an elastic run, `shrinking` makes the world of the survivors, and `membership` keeps their former
numbers. `script_knowledge` notes whether the script has asked for its rank. `terminal` has the output streams of silent
ranks, `exit_codes` the exit code of the script. `mpirun_options` and `hosts` parse command lines and host files of
launchers, for `matex run` as well. `child_process`, `file_locks` and `start_variables` serve other packages.

Terms: a task is what a launcher starts; it becomes a rank when it joins MPI. A node is the ranks that share memory:
those of a host. A communicator is MPI's group of ranks with messages of its own; the library has one for each purpose.
The launcher's streams are the output and error streams that the launcher reads, also on a rank whose own output goes
nowhere. The local rank is the number of a rank among the ranks of its host.
"""
