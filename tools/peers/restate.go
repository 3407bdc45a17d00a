package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"
)

// restatePeer is a Restate server with default settings and a service of its Go SDK. Tasks with a
// key are handlers of a virtual object, which Restate runs one after another for each key.
type restatePeer struct {
	*work

	server  *exec.Cmd
	stop    context.CancelFunc
	ingress string
	http    *http.Client
}

func (p *restatePeer) Start(ctx context.Context, dir string, slots int) error {
	program, err := restateProgram(ctx)
	if err != nil {
		return err
	}
	var ports [4]int
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(ports[i]) }
	p.server = exec.Command(program, "--base-dir", dir, "--node-name", "peers", "--cluster-name", "peers")
	p.server.Env = append(os.Environ(), "RESTATE_BIND_ADDRESS="+address(0), "RESTATE_ADVERTISED_ADDRESS=http://"+address(0),
		"RESTATE_INGRESS__BIND_ADDRESS="+address(1), "RESTATE_ADMIN__BIND_ADDRESS="+address(2), "RESTATE_DISABLE_TELEMETRY=true")
	if err := startProgram(p.server, filepath.Join(dir, "restate.log")); err != nil {
		return err
	}
	p.ingress = "http://" + address(1)
	p.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, MaxConnsPerHost: 1024}}
	service := restate.NewService("Free").Handler("Run", restate.NewServiceHandler(func(ctx restate.Context, t task) (string, error) { return p.run(ctx, t) }))
	object := restate.NewObject("Keyed").Handler("Run", restate.NewObjectHandler(func(ctx restate.ObjectContext, t task) (string, error) { return p.run(ctx, t) }))
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	go func() {
		_ = server.NewRestate().WithLogger(slog.DiscardHandler, true).Bind(service).Bind(object).Start(serving, address(3))
	}() // ends with serving
	if err := await(ctx, func() error {
		conn, err := net.Dial("tcp", address(3))
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		return err
	}
	body := fmt.Sprintf(`{"uri":"http://%s"}`, address(3))
	return await(ctx, func() error { return p.post(ctx, "http://"+address(2)+"/deployments", []byte(body)) })
}

// restateProgram returns the server's program, from npm.
func restateProgram(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "toolfleet-peers", "restate-"+restateVersion)
	find := func() string {
		found, _ := filepath.Glob(filepath.Join(dir, "node_modules/@restatedev/restate-server-*/bin/restate-server"))
		if len(found) == 0 {
			return ""
		}
		return found[0]
	}
	if program := find(); program != "" {
		return program, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "@restatedev/restate-server@"+restateVersion).CombinedOutput()
	if program := find(); err == nil && program != "" {
		return program, nil
	}
	return "", fmt.Errorf("npm install @restatedev/restate-server: %w: %s", cmp.Or(err, errors.New("no program in it")), out)
}

func (p *restatePeer) post(ctx context.Context, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := p.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it is read
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	return err
}

func (p *restatePeer) url(t task) string {
	if t.Key == "" {
		return p.ingress + "/Free/Run"
	}
	return p.ingress + "/Keyed/" + t.Key + "/Run"
}

func (p *restatePeer) Do(ctx context.Context, t task) error {
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return p.post(ctx, p.url(t), body)
}

func (p *restatePeer) Submit(ctx context.Context, tasks []task) error {
	return concurrently(len(tasks), 64, func(i int) error {
		body, err := json.Marshal(tasks[i])
		if err != nil {
			return err
		}
		return p.post(ctx, p.url(tasks[i])+"/send", body)
	})
}

func (p *restatePeer) Close() error {
	err := stopProgram(p.server)
	if p.stop != nil {
		p.stop()
	}
	if p.http != nil {
		p.http.CloseIdleConnections()
	}
	time.Sleep(100 * time.Millisecond) // its service closes its port
	return err
}
