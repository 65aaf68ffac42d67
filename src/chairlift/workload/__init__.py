"""Who asks for what, and when: recorded traffic as plain figures, for measurements and the simulator."""
