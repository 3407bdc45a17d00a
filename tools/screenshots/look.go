package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// errNoBrowser says that nobody has looked at a picture.
var errNoBrowser = errors.New("no Chromium is there to look at it: install chromium-headless-shell")

// looking compares where a browser draws each character with the cell where it belongs.
const looking = `<script>
let faults = [];
for (const text of document.querySelectorAll("text")) {
	const written = text.textContent, shown = text.getNumberOfChars();
	if (shown !== [...written].length) faults.push(written + ": " + shown + " characters are drawn");
	for (let i = 0; i < shown; i++) {
		const off = text.getStartPositionOfChar(i).x - text.x.baseVal[0].value - i * %f;
		if (Math.abs(off) > %f / 2) { faults.push(written + ": character " + i + " is " + off.toFixed(1) + " pixels off"); break; }
	}
}
document.body.textContent = "faults: " + faults.length + "\n" + faults.join("\n") + "\nend of faults";
</script>`

// look opens a picture in a browser, and returns an error that names each word that it does not
// draw in its cells; [errNoBrowser] when there is no browser.
func look(svg string) (err error) {
	browser := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			browser = found
			break
		}
	}
	if browser == "" {
		return errNoBrowser
	}
	dir, err := os.MkdirTemp("", "screenshots-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	page := filepath.Join(dir, "page.html")
	html := "<!doctype html><meta charset=utf-8><body>" + svg + fmt.Sprintf(looking, cellWidth, cellWidth) + "</body>"
	if err := os.WriteFile(page, []byte(html), 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+filepath.Join(dir, "profile"),
		"--dump-dom", "file://"+page)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", browser, err)
	}
	_, faults, found := strings.Cut(string(out), "faults: ")
	faults, _, whole := strings.Cut(faults, "\nend of faults")
	switch {
	case !found || !whole:
		return fmt.Errorf("%s did not look at the picture", browser)
	case !strings.HasPrefix(faults, "0\n"):
		return fmt.Errorf("%s draws the picture in another way: %s", browser, faults)
	}
	return nil
}
