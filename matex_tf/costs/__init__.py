"""What collectives cost, in closed form: for the planner, and for a rank that has to choose."""
