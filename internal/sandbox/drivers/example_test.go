package drivers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// A sandbox without a fleet. The driver "process" is for examples: it isolates nothing. With
// [drivers.Auto] the best of the host is used, or the error wraps [isolation.ErrLevel].
func Example() {
	ctx := context.Background()
	d, caps, err := drivers.Open(ctx, "process", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	dir, err := os.MkdirTemp("", "sandbox-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	workspace, scratch := dir+"/workspace", dir+"/scratch"
	if err := errors.Join(os.Mkdir(workspace, 0o700), os.Mkdir(scratch, 0o700)); err != nil {
		fmt.Println(err)
		return
	}
	box, err := d.Open(ctx, isolation.Spec{
		ID: "example", Workspace: workspace, Scratch: scratch,
		Env:    map[string]string{"PATH": os.Getenv("PATH")}, // nothing is inherited
		Limits: sandbox.Limits{Wall: time.Minute, Output: 64 << 10},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = box.Close() }() // returns when no process is left
	fmt.Println(caps.Level)

	if _, err := box.FS().Write(ctx, protocol.FilesWrite{Path: "notes/a.txt", Content: []byte("one\ntwo\n")}); err != nil {
		fmt.Println(err)
		return
	}
	ran, err := box.Exec(ctx, sandbox.Cmd{Argv: []string{"cat", "a.txt"}, Dir: "notes"})
	fmt.Printf("%s %d %q %v\n", ran.Reason, ran.ExitCode, ran.Stdout.Data, err)

	// A command that goes wrong is a result, one that cannot be started is a fault.
	ran, err = box.Exec(ctx, sandbox.Cmd{Argv: []string{"sleep", "60"}, Limits: sandbox.Limits{Wall: 10 * time.Millisecond}})
	fmt.Println(ran.Reason, err)
	_, err = box.Exec(ctx, sandbox.Cmd{Argv: []string{"no-such-program"}})
	fault, is := errors.AsType[*protocol.Error](err)
	fmt.Println(is, fault.Code)
	_, err = box.FS().Read(ctx, protocol.FilesRead{Path: "../secret"})
	fault, is = errors.AsType[*protocol.Error](err)
	fmt.Println(is, fault.Code)
	// Output:
	// none
	// exited 0 "one\ntwo\n" <nil>
	// timeout <nil>
	// true command_not_found
	// true path_escape
}
