package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session/index"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

type sessionSearch struct {
	Words []string      `arg:"" help:"Words that must all be in a passage. Quotes inside an argument keep words together ('\"no such file\"'), and word* is all words that begin like it."`
	Since time.Duration `default:"0s" help:"Only passages of this time, such as 24h; 0 means all."`
	Limit int           `default:"20" help:"Maximum number of passages to print, up to 1000."`
}

// check checks the flags.
func (c *sessionSearch) check() error {
	if c.Limit < 1 || c.Limit > index.MaxPassages {
		return cli.Usagef("--limit %d: must be 1 to %d", c.Limit, index.MaxPassages)
	}
	if c.Since < 0 {
		return cli.Usagef("--since %s: must not be negative", c.Since)
	}
	return nil
}

func (c *sessionCommand) search(ctx context.Context, p program, all *opened) error {
	search := fleet.Search{Words: strings.Join(c.Search.Words, " "), Limit: c.Search.Limit}
	if c.Search.Since > 0 {
		search.Since = time.Now().Add(-c.Search.Since)
	}
	found, err := all.Search(ctx, search)
	switch {
	case errors.Is(err, fleet.ErrInvalid):
		return cli.Usagef("%v", err)
	case err != nil:
		return err
	}
	if c.JSON {
		return printJSON(p, found)
	}
	for i := range found.Passages {
		if err := printPassage(p, &found.Passages[i]); err != nil {
			return err
		}
	}
	if len(found.Passages) == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "no session has these words")
	}
	if found.More {
		_, _ = fmt.Fprintln(p.Stderr, "more passages are not printed (--limit)")
	}
	if found.Since != nil {
		_, _ = fmt.Fprintf(p.Stderr, "texts before %s are not searched: the index has reached its size\n", found.Since.Local().Format(time.DateTime))
	}
	return nil
}

// printPassage prints where a passage is, and its text below.
func printPassage(p program, passage *report.Passage) error {
	what := strings.TrimSpace(string(passage.Role) + " " + passage.Tool)
	_, err := fmt.Fprintf(p.out(), "%s  turn %d  %s  %s\n    %s\n", prose.OneLine(string(passage.SessionID)), passage.Turn, passage.Time.Local().Format(time.DateTime),
		prose.OneLine(what), strings.Join(strings.Fields(prose.Plain(passage.Text)), " "))
	return err
}
