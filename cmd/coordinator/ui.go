package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/system"
)

// uiCommand serves the web pages of this machine's fleet, and opens them.
type uiCommand struct {
	NoOpen bool `brief:"Print the address only, and open no browser." help:"Print the address of the pages, and open no browser."`
	localSite
}

func (c *uiCommand) run(ctx context.Context, p program) error {
	if strings.HasPrefix(c.HTTP, unixPrefix) {
		return cli.Usagef("--http %s: browsers open no sockets; coordinator http serves the API there", c.HTTP)
	}
	return c.serveLocal(ctx, p, siteOf{command: "ui", ready: func(ctx context.Context, s *site, _ func()) error {
		link := func() string {
			if s.bearer == "" { // each user of --http-tokens has one
				return s.Pages
			}
			return s.URL + pagesPath + "/open?code=" + s.pages.Code(s.bearer)
		}
		switch _, err := fmt.Fprintf(p.Stderr, "coordinator: the web pages are at %s%s\n", s.Pages, s.askingForToken()); {
		case err != nil:
			return err
		case !c.NoOpen && openInBrowser(ctx, p.Getenv, link()) == nil:
			return nil
		}
		_, err := fmt.Fprintf(p.Stderr, "coordinator: open %s\n", link())
		return err
	}})
}

// askingForToken says what the pages ask a browser for that was not signed in.
func (l *listening) askingForToken() string {
	if l.Token == "" {
		return ", for those who have a token of --http-tokens"
	}
	return "; the address with code= signs one browser in, within a minute, and others need the token in " + l.Token
}

// openInBrowser opens an address: with one of the commands of $BROWSER, else as this system does.
func openInBrowser(ctx context.Context, getenv func(string) string, url string) error {
	var commands [][]string
	for command := range strings.SplitSeq(getenv("BROWSER"), string(os.PathListSeparator)) {
		words := strings.Fields(command)
		for i, word := range words {
			words[i] = strings.ReplaceAll(word, "%s", url)
		}
		if len(words) > 0 && !strings.Contains(command, "%s") {
			words = append(words, url)
		}
		commands = append(commands, words)
	}
	switch {
	case runtime.GOOS == "darwin":
		commands = append(commands, []string{"open", url})
	case runtime.GOOS == "windows":
		commands = append(commands, []string{"rundll32", "url.dll,FileProtocolHandler", url})
	case getenv("DISPLAY") != "" || getenv("WAYLAND_DISPLAY") != "": // else it would open one in the terminal
		commands = append(commands, []string{"xdg-open", url})
	}
	err := exec.ErrNotFound
	for _, words := range commands {
		if len(words) == 0 {
			continue
		}
		cmd := exec.CommandContext(context.WithoutCancel(ctx), words[0], words[1:]...) //nolint:gosec // as the user has set it
		system.Detach(cmd)
		if err = cmd.Start(); err == nil {
			return cmd.Process.Release() // it may be the browser itself
		}
	}
	return err
}
