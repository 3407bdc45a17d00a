//go:build !linux

package doctor

import "errors"

func landlockABI() int { return 0 }

// freeBytes is for hosts on which checks look at more than the system.
func freeBytes(dir string) (string, int64, error) { return dir, 0, errors.ErrUnsupported }
