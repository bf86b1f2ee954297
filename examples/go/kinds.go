package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"tickr"
)

const queue = "shop-go"

// Mail is a mail to send.
type Mail struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// Picture is a picture to make smaller.
type Picture struct {
	Width int `json:"width"`
}

// Report is a report on the first orders.
type Report struct {
	Orders int `json:"orders"`
}

// File is what a job has written.
type File struct {
	File string `json:"file"`
	// Total is the sum of the orders of a report.
	Total int `json:"total,omitempty"`
}

// The kinds of the shop. Producers and the worker share them.
var (
	sendMail      = tickr.Kind[Mail, File]{Name: "shop.go.mail"}
	resizePicture = tickr.Kind[Picture, File]{Name: "shop.go.picture"}
	makeReport    = tickr.Kind[Report, File]{Name: "shop.go.report"}
)

// declare declares the kinds, as an operator does once. The key needs the scope admin; `tickr dev` asks for none.
func declare(ctx context.Context) error {
	type object map[string]any
	text, number := object{"type": "string"}, object{"type": "integer", "minimum": 1, "maximum": 1000}
	schemas := map[string]object{
		sendMail.Name: {
			"properties": object{"to": text, "subject": text, "text": text}, "required": []string{"to", "subject", "text"},
		},
		resizePicture.Name: {"properties": object{"width": number}, "required": []string{"width"}},
		makeReport.Name:    {"properties": object{"orders": number}, "required": []string{"orders"}},
	}
	for name, schema := range schemas {
		schema["type"] = "object"
		body, err := json.Marshal(object{"queue": queue, "schema": schema, "retry": object{"base_ms": 200}})
		if err != nil {
			return err
		}
		url := strings.Split(os.Getenv("TICKR_URL"), ",")[0] + "/v1/kinds/" + name
		request, err := http.NewRequestWithContext(ctx, "PUT", url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("content-type", "application/json")
		if token := os.Getenv("TICKR_TOKEN"); token != "" {
			request.Header.Set("authorization", "Bearer "+token)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		problem, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		if answer.StatusCode >= 300 {
			return fmt.Errorf("%s could not be declared: %s", name, problem)
		}
	}
	return nil
}
