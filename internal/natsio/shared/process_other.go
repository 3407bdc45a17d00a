//go:build !unix

package shared

// CloseInherited does nothing: no descriptors are inherited here.
func CloseInherited() {}
