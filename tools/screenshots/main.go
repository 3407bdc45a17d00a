// Command screenshots draws docs/images from real sessions: it runs bin/coordinator on a terminal
// of its own, with a scripted model, and writes what stands there in the end as SVG.
//
//	screenshots bin/coordinator tools/screenshots/run.script.json examples/wordstats docs/images/run.svg
//
// What differs from run to run (ids, times) is replaced, so that a second run changes nothing. A
// browser then shows whether each character is where it stood on the terminal.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

// The terminal's size: higher than any session that is drawn, so that nothing scrolls away.
const (
	columns = 106
	rows    = 120
)

// place is where sessions run; the cache in it stays, so that Go builds its standard library once.
const place = ".toolfleet/screenshots"

// warmUp builds all that a session builds, with a longer time.
const warmUp = `{"command": "go vet ./...; go test ./...", "timeout": 600}`

const prompt = "The tests of this project fail. Repair it."

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: screenshots COORDINATOR SCRIPT PROJECT SVG")
		os.Exit(2)
	}
	if err := draw(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		os.Exit(1)
	}
}

// draw runs a session on a copy of the project and draws it.
func draw(coordinator, script, project, svg string) (err error) {
	home, err := filepath.Abs(place)
	if err != nil {
		return err
	}
	workspace := filepath.Join(home, "wordstats")
	if err := os.RemoveAll(workspace); err != nil {
		return err
	}
	if err := os.CopyFS(workspace, os.DirFS(project)); err != nil {
		return err
	}
	if err := exec.Command("git", "init", "-q", workspace).Run(); err != nil { // a project as people have it
		return fmt.Errorf("git init: %w", err)
	}
	model, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(home, "repair.json"), model, 0o600); err != nil {
		return err
	}
	if coordinator, err = filepath.Abs(coordinator); err != nil {
		return err
	}
	command := func(args ...string) *exec.Cmd {
		for _, variable := range []string{"GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=-count=1"} { // what was tested is tested again
			args = append(args, "--env", variable)
		}
		cmd := exec.Command(coordinator, args...)
		cmd.Dir = workspace
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TERM=xterm-256color", "TOOLFLEET_WORKSPACE=.", "TOOLFLEET_MODEL=script:../repair.json",
		}
		return cmd
	}
	if out, err := command("call", "bash", warmUp).CombinedOutput(); err != nil && len(out) == 0 {
		return fmt.Errorf("build the tests: %w", err)
	}
	screen, err := show(command("run", prompt))
	if err != nil {
		return err
	}
	typed := `$ coordinator run --workspace . "` + prompt + `"`
	image := render(typed, masked(linesOf(screen), workspace))
	if err := os.WriteFile(svg, []byte(image), 0o644); err != nil { //nolint:gosec // for everybody who reads the documents
		return err
	}
	if err := look(image); err != nil {
		return fmt.Errorf("%s: %w", svg, err)
	}
	return nil
}

// show runs a command on a terminal until it ends.
func show(cmd *exec.Cmd) (*vt.Emulator, error) {
	screen := vt.NewEmulator(columns, rows)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: columns, Rows: rows})
	if err != nil {
		return nil, err
	}
	defer func() { _ = terminal.Close() }()
	piece := make([]byte, 32<<10)
	for {
		n, err := terminal.Read(piece)
		_, _ = screen.Write(piece[:n])
		if errors.Is(err, syscall.EIO) { // nobody has the terminal open any more
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w; the terminal shows:\n%s", err, screen.String())
	}
	return screen, nil
}
