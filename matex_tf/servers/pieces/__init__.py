"""Updates in pieces: each rank updates a part of every variable. Owners of pieces, variables, copies, and costs."""
