"""The engine that every loop drives: scheduler, worker and frontend, a method for each phase."""
