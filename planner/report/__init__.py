"""The plan as a page that people read: one self-contained file, the answer first, every figure that of plan.json."""
