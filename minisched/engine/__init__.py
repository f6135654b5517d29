"""What every loop drives: a scheduler, a worker and a frontend, with one method for each phase."""
