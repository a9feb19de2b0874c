"""Files of compiled code: which users could have changed them (`trust`), which process makes them (`turns`)."""
