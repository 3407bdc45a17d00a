//go:build unix

package start

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// defaultPath is where programs are looked up without a PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// Lookup finds a program in the command's PATH, not the worker's. Relative names and PATH entries
// are relative to dir.
func Lookup(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return lookupFile(name, dir)
	}
	if path == "" {
		path = defaultPath
	}
	found := false
	for _, entry := range filepath.SplitList(path) {
		file := absolute(filepath.Join(entry, name), dir)
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if executable(info) {
			return file, nil
		}
		found = true
	}
	if found {
		return "", notExecutable(name)
	}
	return "", notFound(name)
}

func lookupFile(name, dir string) (string, error) {
	file := absolute(name, dir)
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return "", protocol.Errorf(protocol.CodeCommandNotFound, "%q does not exist", name)
	case info.IsDir():
		return "", protocol.Errorf(protocol.CodeCommandNotFound, "%q is a directory", name)
	case !executable(info):
		return "", notExecutable(name)
	}
	return file, nil
}

func absolute(name, dir string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func executable(info fs.FileInfo) bool { return info.Mode()&0o111 != 0 }

// Describe fills in how a process ended under its limits. killed is why the driver killed it, or ""
// if it did not.
func Describe(result *sandbox.Result, status syscall.WaitStatus, killed sandbox.Reason, limits sandbox.Limits) {
	natural := sandbox.ReasonExited
	switch {
	case !status.Signaled():
		result.ExitCode = status.ExitStatus()
	case killed != "":
		natural = killed
	case status.Signal() == unix.SIGXCPU && limits.CPU > 0:
		natural = sandbox.ReasonTimeout
	case status.Signal() == unix.SIGXFSZ && (limits.FileSize > 0 || limits.Disk > 0):
		natural = sandbox.ReasonDiskLimit
	default:
		natural = sandbox.ReasonSignaled
	}
	if status.Signaled() {
		result.Signal = unix.SignalName(status.Signal())
	}
	if result.Reason == "" {
		result.Reason = natural
	}
}
