"""Long runs that try to break inverseflow: `make soak`. Their short forms run with the tests."""
