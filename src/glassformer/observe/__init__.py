"""Looking inside models: capture, measures of attention, predicted and measured cost, interventions
and sweeps.
"""
