//go:build !linux

package doctor

func landlockABI() int { return 0 }

func writable(string) bool { return false }
