//go:build !linux

package cli

// FewFiles knows of no limit.
func FewFiles(int) []string { return nil }
