"""Executors: plan in, result out. The only home of numerical code."""
