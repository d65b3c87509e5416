"""Look inside models: captures, interventions, sweeps, measures of attention, and costs."""
