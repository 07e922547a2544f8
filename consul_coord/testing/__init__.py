"""What applications test their use of this package with: a real agent, fixtures, faults."""
