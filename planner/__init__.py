"""A plan is the cheapest fleet that meets every target, with the evidence for it and what ruled the others out.

This layer turns a scenario into candidates, prices them and ranks them. It asks `simulator` how a fleet behaves
and `hardware_profiles` what machines, models and prices are; it never measures anything itself.
"""
