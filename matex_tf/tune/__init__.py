"""`matex tune`: the hyperparameters of an unchanged script, searched by trials that are runs of `matex run`."""
