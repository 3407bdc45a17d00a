package toolset

// MaxTimeout is for tests.
const MaxTimeout = maxTimeout
