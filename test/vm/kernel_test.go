//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suite is the Debian release of the kernel, and meta the package that stands for its newest one.
const (
	suite = "trixie"
	meta  = "linux-image-cloud-amd64"
)

// kernel returns a kernel of Debian. It is fetched and checked by apt, with a state of its own
// in dir, and installed nowhere.
func kernel(ctx context.Context, dir string) (string, error) {
	pattern := filepath.Join(dir, "kernel", "boot", "vmlinuz-*")
	if found, _ := filepath.Glob(pattern); len(found) > 0 { // the pattern is right
		return found[0], nil
	}
	a := apt{dir: dir}
	if err := a.setUp(); err != nil {
		return "", err
	}
	if _, err := a.run(ctx, "apt-get", "update"); err != nil {
		return "", err
	}
	depends, err := a.run(ctx, "apt-cache", "depends", meta)
	if err != nil {
		return "", err
	}
	_, after, found := strings.Cut(depends, "Depends: ")
	name, _, _ := strings.Cut(after, "\n")
	if !found {
		return "", fmt.Errorf("apt-cache depends %s: %q", meta, depends)
	}
	if _, err := a.run(ctx, "apt-get", "download", strings.TrimSpace(name)); err != nil {
		return "", err
	}
	packages, _ := filepath.Glob(filepath.Join(dir, "linux-image-*.deb")) // the pattern is right
	if len(packages) != 1 {
		return "", fmt.Errorf("%d packages of a kernel in %s, want 1", len(packages), dir)
	}
	if _, err := a.run(ctx, "dpkg-deb", "-x", packages[0], filepath.Join(dir, "kernel")); err != nil {
		return "", err
	}
	if found, _ := filepath.Glob(pattern); len(found) > 0 { // as above
		return found[0], nil
	}
	return "", errors.New("there is no kernel in " + packages[0])
}

// apt is Debian's package manager with a state of its own.
type apt struct{ dir string }

func (a apt) setUp() error {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("to check Debian's signature: %w; install debian-archive-keyring, or give a kernel by -kernel", err)
	}
	source := fmt.Sprintf("deb [signed-by=%s] http://deb.debian.org/debian %s main\n", keyring, suite)
	return errors.Join(
		os.MkdirAll(filepath.Join(a.dir, "apt", "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(a.dir, "apt", "archives", "partial"), 0o755),
		os.WriteFile(filepath.Join(a.dir, "apt", "sources.list"), []byte(source), 0o644),
	)
}

// run runs one of apt's programs, or dpkg-deb, in the folder.
func (a apt) run(ctx context.Context, program string, args ...string) (string, error) {
	if program != "dpkg-deb" {
		state := filepath.Join(a.dir, "apt")
		args = append([]string{
			"-q", "-o", "Dir::State=" + state, "-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache=" + state,
			"-o", "Dir::Etc::SourceList=" + filepath.Join(state, "sources.list"), "-o", "Dir::Etc::SourceParts=-",
			"-o", "APT::Architecture=amd64", "-o", "APT::Sandbox::User=", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		}, args...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = a.dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return string(out), nil
}
