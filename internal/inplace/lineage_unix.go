//go:build unix

package inplace

import (
	"fmt"
	"os"
	"syscall"
)

// lineageOf returns a directory and its ancestors, by device and inode. Ancestors that cannot be
// seen are left out.
func lineageOf(dir string) (lineage []string, err error) {
	for at := dir; ; at += "/.." {
		info, err := os.Stat(at)
		if err != nil && len(lineage) == 0 {
			return nil, err
		}
		if err != nil {
			return lineage, nil //nolint:nilerr // see above
		}
		stat, is := info.Sys().(*syscall.Stat_t)
		if !is {
			return nil, fmt.Errorf("%s: no device and inode", dir)
		}
		key := fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
		if len(lineage) > 0 && lineage[len(lineage)-1] == key { // the root
			return lineage, nil
		}
		lineage = append(lineage, key)
	}
}
