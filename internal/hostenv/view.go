package hostenv

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// View is what the sandboxes of a driver show of the host by themselves.
type View struct {
	// Root says that sandboxes have a root of their own: workspace, home and temporary files have
	// places there that are not those of the host.
	Root bool
	// Host says that sandboxes are no sandboxes: they see the host as it is.
	Host bool
	// sees are directories of the host that are there, and own those that hide the host's.
	sees, own []string
}

// guestWorkspace is where sandboxes with a root of their own have their workspace.
const guestWorkspace = "/workspace"

// guestTemp is where they have temporary files. What the host has below /tmp can be shown there.
const guestTemp = "/tmp"

// ViewOf is the view of a driver with these capabilities.
func ViewOf(caps isolation.Caps) View {
	system := []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr"}
	switch {
	case caps.Level == isolation.LevelNone:
		return View{Host: true, sees: append(system, "/opt")}
	case caps.Driver == "landlock":
		return View{sees: append(system, "/opt")}
	default:
		return View{
			Root: true, sees: system,
			own: []string{"/proc", "/dev", "/sys", "/etc", guestWorkspace, guestTemp, "/tmp.host", "/home/sandbox"},
		}
	}
}

// has reports whether sandboxes see a path of the host where it is.
func (v View) has(path string) bool { return isAny(path, v.sees) }

// hides is the place of the sandbox's own that a path is in; "" when there is none.
func (v View) hides(path string) string {
	for _, dir := range v.own {
		if hides(dir, path) {
			return dir
		}
	}
	return ""
}

// hides reports whether a place of the sandbox's own has no room for a path of the host.
func hides(own, path string) bool {
	return path == own || own != guestTemp && within(path, own)
}

// within reports whether a clean path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func isAny(path string, dirs []string) bool {
	for _, dir := range dirs {
		if within(path, dir) {
			return true
		}
	}
	return false
}

// resolved is a path without symbolic links; "" when nothing is there.
func resolved(path string) string {
	if path == "" {
		return ""
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return target
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
