package npmtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// installTimeout bounds the download and unpacking of the packages.
const installTimeout = 10 * time.Minute

// lockPause is the time between tries to get the lock.
const lockPause = 50 * time.Millisecond

// manifests are what says which packages, in which versions and with which hashes.
func manifests() []string { return []string{"package.json", "package-lock.json"} }

// install returns a directory with the packages that source pins, which it installs if need be.
// One process at a time installs them, in a directory that gets its name when it is whole; the
// others wait for that instead of doing the same work at the same time.
func install(ctx context.Context, source string) (string, error) {
	if err := checkNode(ctx); err != nil {
		return "", err
	}
	root, err := repository()
	if err != nil {
		return "", err
	}
	files := make(map[string][]byte)
	for _, name := range manifests() {
		if files[name], err = os.ReadFile(filepath.Join(root, source, name)); err != nil {
			return "", err
		}
	}
	cache := cacheDir(root)
	sum := sha256.Sum256(files["package-lock.json"])
	final := filepath.Join(cache, filepath.Base(source)+"-"+hex.EncodeToString(sum[:6]))
	if exists(final) {
		return final, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock := flock.New(final + ".lock")
	if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if exists(final) {
		return final, nil
	}
	work, err := os.MkdirTemp(cache, "installing-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := npmInstall(ctx, work, files); err != nil {
		return "", err
	}
	return final, os.Rename(work, final)
}

func npmInstall(ctx context.Context, dir string, files map[string][]byte) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = dir
	npm.WaitDelay = time.Second
	if output, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, bytes.TrimSpace(output))
	}
	return nil
}

// repository is the root of this repository, found from the directory of the test.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for !exists(filepath.Join(dir, "go.mod")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the directory of the test")
		}
		dir = parent
	}
	return dir, nil
}

// cacheDir is below the user's cache directory, or the repository's if there is no user.
func cacheDir(root string) string {
	if user, err := os.UserCacheDir(); err == nil {
		return filepath.Join(user, "toolfleet-test")
	}
	return filepath.Join(root, ".cache")
}

// checkNode returns an error unless node 20.15 or later, which the packages need, and npm are
// there.
func checkNode(ctx context.Context) error {
	if _, err := exec.LookPath("npm"); err != nil {
		return err
	}
	output, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	version := strings.TrimSpace(string(output))
	var major, minor int
	if _, err := fmt.Sscanf(version, "v%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("node: version %q: %w", version, err)
	}
	if major < 20 || major == 20 && minor < 15 {
		return fmt.Errorf("node: version %s, needs 20.15 or later", version)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
