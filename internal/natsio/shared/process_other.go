//go:build !unix

package shared

import "io/fs"

// owned does not know who a directory belongs to.
func owned(string, fs.FileInfo) error { return nil }

// CloseInherited does nothing: no descriptors are inherited here.
func CloseInherited() {}
