package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionFiles struct {
	ID   string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Path string `arg:"" optional:"" help:"File of the workspace to print. Default: list the files."`
	At   string `placeholder:"CALL" help:"Call after which the state is taken, or \"turn N\" for the end of a turn. Default: the current state."`
}

type sessionDiff struct {
	ID   string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Call string `arg:"" optional:"" help:"Id of the call whose changes are shown, or of another session, such as a fork, to compare with, or \"turn N\" of a session that works in place. Default: list the calls that changed something."`
}

// underWorkspace is where the files of a workspace are in its checkpoints.
const underWorkspace = "workspace/"

// files lists the files of a workspace, or prints one.
func (c *sessionCommand) files(ctx context.Context, p program, all *opened) error {
	var err error
	here, point, at := all.inPlace(all.id), all.at, all.at.Call
	if here == nil {
		if at, err = all.callAt(ctx, all.id, point); err != nil {
			return err
		}
	}
	if c.Files.Path != "" {
		var content []byte
		if here != nil {
			content, err = here.Read(ctx, c.Files.Path, point)
		} else {
			content, err = all.ReadFile(ctx, all.id, c.Files.Path, at)
		}
		if err != nil {
			return err
		}
		_, err = p.out().Write(content)
		return err
	}
	var list []report.File
	if here != nil {
		list, err = here.List(ctx, point)
	} else {
		list, err = all.Files(ctx, all.id, at)
	}
	if err != nil {
		return err
	}
	return c.printFiles(p, list)
}

func (c *sessionCommand) printFiles(p program, list []report.File) error {
	if c.JSON {
		return printJSON(p, list)
	}
	for _, file := range list {
		bits, err := strconv.ParseUint(file.Mode, 8, 32)
		if err != nil {
			return fmt.Errorf("mode of %s: %w", file.Path, err)
		}
		mode, shown := fs.FileMode(bits), prose.OneLine(file.Path)
		switch file.Type {
		case protocol.TypeDir:
			mode |= fs.ModeDir
		case protocol.TypeSymlink:
			mode |= fs.ModeSymlink
			shown += " -> " + prose.OneLine(file.Target)
		default:
		}
		if _, err := fmt.Fprintf(p.Stdout, "%s %10d  %s\n", mode, file.Size, shown); err != nil {
			return err
		}
	}
	return nil
}

// diff shows what a call changed, or lists the calls that changed something.
func (c *sessionCommand) diff(ctx context.Context, p program, all *opened) error {
	here := all.inPlace(all.id)
	if c.Diff.Call == "" {
		return c.calls(ctx, p, all, here)
	}
	var text string
	var err error
	point, notPoint := parsePoint(c.Diff.Call)
	switch {
	case here != nil && notPoint == nil && point.Turn != 0:
		text, err = here.Diff(ctx, point.Turn)
	case here != nil:
		text, err = reported(ctx, all, all.id, here, protocol.CallID(c.Diff.Call))
	default:
		text, err = all.Diff(ctx, all.id, protocol.CallID(c.Diff.Call))
	}
	if errors.Is(err, fleet.ErrNotFound) { // it may be the id of a session
		compared := ""
		second, otherErr := protocol.ParseSessionID(c.Diff.Call)
		if otherErr == nil {
			second, otherErr = all.find(ctx, second)
		}
		if otherErr == nil {
			compared, otherErr = all.compare(ctx, all.id, second, p.warn)
		}
		if !errors.Is(otherErr, fleet.ErrNotFound) {
			text, err = compared, otherErr
		}
	}
	if err != nil {
		return err
	}
	return c.print(p, map[string]string{"call": c.Diff.Call, "diff": text}, "%s", text)
}

// reported is the diff of a call of a session that works in place, as its tool reported it.
func reported(ctx context.Context, all *opened, id protocol.SessionID, here *environment.InPlaceFiles, call protocol.CallID) (string, error) {
	log, err := all.Log(ctx, id)
	if err != nil {
		return "", err
	}
	for _, e := range log.Events {
		if e.CallID == call && e.Diff != "" {
			return e.Diff, nil
		}
	}
	return "", here.NoState(fmt.Sprintf("call %s reported no change", call))
}

// reportedChanges are the changes of a session that works in place, as its tools reported them.
func reportedChanges(events []loop.Event) []report.Change {
	changes := []report.Change{}
	for _, e := range events {
		files := terminal.ChangedIn(e.Diff)
		if len(files) == 0 {
			continue
		}
		change := report.Change{Calls: []protocol.CallID{e.CallID}, Time: e.Time}
		for _, file := range files {
			if change.Paths = append(change.Paths, underWorkspace+file.Path); file.Gone {
				change.Removed++
			} else {
				change.Set++
			}
		}
		changes = append(changes, change)
	}
	return changes
}

// calls lists the calls that changed a workspace.
func (c *sessionCommand) calls(ctx context.Context, p program, all *opened, here *environment.InPlaceFiles) error {
	events, err := all.Log(ctx, all.id) // a workspace without a session's journal has no names of tools
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	var changes []report.Change
	if here != nil {
		changes = reportedChanges(events.Events)
		p.warn(fmt.Sprintf("%v",
			here.NoState("these are the changes that tools reported, without those of commands; session diff "+string(all.id)+" \"turn N\" shows all of a turn")))
	} else if changes, err = all.Changes(ctx, all.id); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, changes)
	}
	tools := map[protocol.CallID]string{}
	for _, e := range events.Events {
		if e.Type == loop.EventToolCall {
			tools[e.CallID] = e.Name
		}
	}
	for _, at := range changes {
		what := "everything"
		if at.Set+at.Removed > 0 {
			what = fmt.Sprintf("%d set, %d removed: %s", at.Set, at.Removed, named(at.Paths))
		}
		for _, call := range at.Calls {
			if _, err := fmt.Fprintf(p.out(), "%s  %s  %s  %s\n", call, at.Time.Local().Format(time.DateTime), orDash(prose.OneLine(tools[call])), what); err != nil {
				return err
			}
		}
	}
	return nil
}

// named are the first paths of a workspace, as people know them.
func named(paths []string) string {
	var shown []string
	for _, path := range paths {
		if name, in := strings.CutPrefix(path, underWorkspace); in {
			shown = append(shown, prose.OneLine(name))
		}
	}
	if len(shown) > maxNamed {
		shown = append(shown[:maxNamed], "...")
	}
	return strings.Join(shown, ", ")
}
