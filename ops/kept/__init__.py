"""Folders of compiled code: who could have written to them (`trust`), and which of many processes builds (`turns`)."""
