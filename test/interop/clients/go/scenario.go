//go:build ignore

// Scenario runs with the client that oapi-codegen makes: see run.sh.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"scenario/api"
)

const session = "go"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	token := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("TOOLFLEET_TOKEN"))
		return nil
	}
	client, err := api.NewClientWithResponses(os.Getenv("TOOLFLEET_URL"), api.WithRequestEditorFn(token))
	check(err == nil, err)

	id := session
	begun, err := client.NewSessionWithResponse(ctx, nil, api.NewSessionJSONRequestBody{Prompt: "Work.", SessionId: &id})
	check(err == nil && begun.JSON202 != nil && begun.JSON202.SessionId == session, begun, err)

	until := true
	stream, err := client.FollowSession(ctx, session, &api.FollowSessionParams{UntilTurnEnded: &until})
	check(err == nil && stream.StatusCode == http.StatusOK, stream, err)
	last := ""
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
			last = data
		}
	}
	stream.Body.Close()
	check(strings.Contains(last, `"type":"turn_ended"`), last)

	wait := int64(30_000)
	turn, err := client.GetCallWithResponse(ctx, session, begun.JSON202.CallId, &api.GetCallParams{WaitMs: &wait})
	check(err == nil && turn.JSON200 != nil && turn.JSON200.Result.Text == "Done.", turn, err)

	tool, arguments := "bash", any(map[string]string{"command": "echo more >>made.txt; echo hi"})
	sent, err := client.SendCallWithResponse(ctx, nil, api.SendCallJSONRequestBody{Tool: &tool, Arguments: &arguments, SessionId: &id})
	check(err == nil && sent.JSON202 != nil, sent, err)
	ended, err := client.GetCallWithResponse(ctx, session, sent.JSON202.CallId, &api.GetCallParams{WaitMs: &wait})
	check(err == nil && ended.JSON200 != nil && ended.JSON200.Result.Text == "hi\n", ended, err)

	file, err := client.ReadFileWithResponse(ctx, session, &api.ReadFileParams{Path: "made.txt"})
	check(err == nil && string(file.Body) == "by the modelmore\n", file, err)

	lanes, err := client.ListLanesWithResponse(ctx, nil)
	check(err == nil && lanes.JSON200 != nil && lanes.JSON200.Lanes != nil, lanes, err)

	none, err := client.GetSessionWithResponse(ctx, "none")
	check(err == nil && none.ApplicationproblemJSON404 != nil && none.ApplicationproblemJSON404.Code == "not_found", none, err)
	fmt.Println("oapi-codegen: the scenario ran")
}

func check(right bool, seen ...any) {
	if !right {
		log.Fatalf("%+v", seen)
	}
}
