// Package system has what a process asks of its system, and paths as the system has them.
package system

import (
	"fmt"
	"slices"
	"strings"
)

// Mount is a line of the table of mounts in /proc/PID/mountinfo; see proc_pid_mountinfo(5).
type Mount struct {
	ID      string
	Parent  string // the id of the mount that it is in
	Root    string // the part of the file system that is mounted
	Point   string // where
	Options string
	Peers   []string // optional fields, of mounts that others can change
	Type    string   // of the file system
}

// Has reports whether the mount has an option, such as ro.
func (m Mount) Has(option string) bool { return slices.Contains(strings.Split(m.Options, ","), option) }

// The indexes of fields, and of the first optional one.
const (
	id, parent, root, point, options, optional = 0, 1, 3, 4, 5, 6
)

// ParseMounts reads a table. A line of another form is an error that quotes it.
func ParseMounts(table string) ([]Mount, error) {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var all []Mount
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		end := slices.Index(fields, "-")
		if end < optional || end+1 == len(fields) {
			return nil, fmt.Errorf("mountinfo: %q", line)
		}
		all = append(all, Mount{
			ID: fields[id], Parent: fields[parent], Root: plain.Replace(fields[root]), Point: plain.Replace(fields[point]),
			Options: fields[options], Peers: fields[optional:end], Type: fields[end+1],
		})
	}
	return all, nil
}
