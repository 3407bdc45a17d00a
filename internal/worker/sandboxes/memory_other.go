//go:build !linux

package sandboxes

// memory is how much this process may use, in bytes.
func memory() int64 { return defaultMemory }
