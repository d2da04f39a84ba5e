"""Many processes: what they cost, and what they need, beside one."""
