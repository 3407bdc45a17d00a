package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
	socket := ""
	return c.serveLocal(ctx, p, siteOf{
		command: "ui",
		running: func(ctx context.Context, session protocol.SessionID) bool {
			state, err := cli.StateDir(string(session) + ".sock")
			if err != nil {
				return false
			}
			socket = state
			link, err := linkOfRunning(ctx, socket)
			if err != nil {
				return false
			}
			p.warn("coordinator ui runs already, with the flags that it was started with")
			return c.show(ctx, p, link) == nil
		},
		ready: func(ctx context.Context, s *site, _ func(), background *sync.WaitGroup) error {
			link := func() string {
				if s.bearer == "" { // each user of --http-tokens has one
					return s.Pages
				}
				return s.URL + pagesPath + "/open?code=" + s.pages.Code(s.bearer)
			}
			if socket != "" {
				offerLinks(ctx, socket, link, background)
			}
			if _, err := fmt.Fprintf(p.Stderr, "coordinator: the web pages are at %s%s\n", s.Pages, s.askingForToken()); err != nil {
				return err
			}
			return c.show(ctx, p, link())
		},
	})
}

// show opens an address, or prints it.
func (c *uiCommand) show(ctx context.Context, p program, link string) error {
	if !c.NoOpen {
		if whole, err := openInBrowser(ctx, p.Getenv, link); err == nil && whole {
			return nil
		}
	}
	_, err := fmt.Fprintf(p.Stderr, "coordinator: open %s\n", link)
	return err
}

// maxLink bounds an address.
const maxLink = 4 << 10

// linkOfRunning asks a coordinator ui that runs already for an address that signs a browser in.
// Only processes of this user reach its socket.
func linkOfRunning(ctx context.Context, socket string) (string, error) {
	const within = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within)) // of a connection that is open
	link, err := io.ReadAll(io.LimitReader(conn, maxLink))
	if err == nil && len(link) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return string(link), err
}

// offerLinks answers linkOfRunning until ctx ends. Without it, a second coordinator ui says that
// the first one runs.
func offerLinks(ctx context.Context, socket string, link func() string, background *sync.WaitGroup) {
	listener, err := listenUnix(ctx, socket)
	if err != nil {
		return
	}
	background.Go(func() {
		stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
		defer stop()
		defer os.Remove(socket)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, link()) // the other process has gone
			_ = conn.Close()
		}
	})
}

// askingForToken says what the pages ask a browser for that was not signed in.
func (l *listening) askingForToken() string {
	if l.Token == "" {
		return ", for those who have a token of --http-tokens"
	}
	return "; the address with code= signs one browser in, within a minute, and others need the token in " + l.Token
}

// opener is a command that opens an address.
type opener struct {
	words []string
	input string
	whole bool // the address has its code
}

// openersOf returns the commands that may open an address, the first one that starts does: those of
// $BROWSER, else that of the system. Other users of the machine read the arguments of commands. So
// an argument has a code only where the pages know whose a connection is (users), or where
// arguments are not to be read; elsewhere it is input, or the person opens the address from the
// terminal.
func openersOf(system string, users bool, getenv func(string) string, link string) (all []opener) {
	whole, argument := users || system == "windows", link
	if !whole {
		argument, _, _ = strings.Cut(link, "/open?code=")
		argument += "/"
	}
	for command := range strings.SplitSeq(getenv("BROWSER"), string(os.PathListSeparator)) {
		words := strings.Fields(command)
		for i, word := range words {
			words[i] = strings.ReplaceAll(word, "%s", argument)
		}
		if len(words) > 0 && !strings.Contains(command, "%s") {
			words = append(words, argument)
		}
		all = append(all, opener{words: words, whole: whole})
	}
	switch {
	case system == "darwin":
		all = append(all, opener{[]string{"osascript"}, "open location \"" + link + "\"\n", true})
	case system == "windows":
		all = append(all, opener{[]string{"rundll32", "url.dll,FileProtocolHandler", argument}, "", whole})
	case getenv("DISPLAY") != "" || getenv("WAYLAND_DISPLAY") != "": // else it would open one in the terminal
		all = append(all, opener{[]string{"xdg-open", argument}, "", whole})
	}
	return slices.DeleteFunc(all, func(o opener) bool { return len(o.words) == 0 })
}

// openInBrowser opens an address, and reports whether that had its code.
func openInBrowser(ctx context.Context, getenv func(string) string, link string) (whole bool, err error) {
	err = exec.ErrNotFound
	for _, o := range openersOf(runtime.GOOS, access.KnowsUsers, getenv, link) {
		if err = o.open(ctx); err == nil {
			return o.whole, nil
		}
	}
	return false, err
}

// open starts the command, which may be the browser itself: it goes on when ctx has ended. One that
// reads the address only passes it on, and ends at once: open waits for that, for some time.
func (o *opener) open(ctx context.Context) error {
	const within = 30 * time.Second // a person may have to allow it
	passing, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if o.input == "" {
		passing = context.WithoutCancel(ctx)
	}
	cmd := exec.CommandContext(passing, o.words[0], o.words[1:]...) //nolint:gosec // as the user has set it
	system.Detach(cmd)
	if o.input != "" {
		cmd.Stdin = strings.NewReader(o.input)
		return cmd.Run()
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}
