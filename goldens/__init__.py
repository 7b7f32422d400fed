"""Golden fixtures: case -> inputs -> stages -> file -> backend -> comparison -> report."""
