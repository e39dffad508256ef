"""How many slots next week needs: rates by hour of week, a forecast, and a queueing formula. Pure,
but for the job."""
