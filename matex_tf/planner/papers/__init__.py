"""Models of three papers that the planner uses: XAI, HTC and iBatch, with the domains of their equations."""
