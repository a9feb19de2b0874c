"""The numbers of the papers beside ours."""
