// Package scripted is a model that replies from a script: real sessions with
// real tools, and no model provider.
//
// A script is a JSON file:
//
//	{
//	  "delay_ms": 20,
//	  "steps": [
//	    {"text": "Let me look.", "tool_calls": [
//	      {"id": "c1", "name": "bash", "arguments": {"command": "ls"}},
//	      {"id": "c2", "name": "read", "arguments_raw": "{"}
//	    ]},
//	    {"text": "Done.", "usage": {"input_tokens": 12, "output_tokens": 3}}
//	  ]
//	}
//
// The model keeps no state. Which step it replies with follows from the
// conversation alone: as many assistant messages as it holds, so many steps
// are over. A resumed session therefore goes on where it was, several
// sessions may share one model, and a second turn goes on behind the last step of
// the first. A conversation that is longer than the script is an [EndError].
//
// Whatever is wrong with a script is found when it is read, all faults at once.
package scripted
