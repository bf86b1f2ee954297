<?php

declare(strict_types=1);

namespace Tickr;

/** The server refused a call. It carries the problem document of the answer. */
final class Problem extends \RuntimeException implements TickrException
{
    /** @var string The stable code of the problem, such as `unique_key_taken`. */
    public $code = '';

    /**
     * @param string               $problemCode the stable code
     * @param string               $title       the code in words
     * @param string               $detail      what happened, for people
     * @param int                  $status      the HTTP status
     * @param array<string, mixed> $document    the whole problem document, such as `holder` and `errors`
     */
    public function __construct(
        string $problemCode,
        public readonly string $title,
        public readonly string $detail,
        public readonly int $status,
        public readonly array $document = [],
    ) {
        $faults = [];
        foreach (\is_array($document['errors'] ?? null) ? $document['errors'] : [] as $fault) {
            $faults[] = trim(($fault['pointer'] ?? '') . ' ' . ($fault['detail'] ?? ''));
        }
        $more = $faults === [] ? '' : ' (' . implode('; ', $faults) . ')';
        parent::__construct("$problemCode: $detail$more");
        $this->code = $problemCode;
    }

    /** Read the problem document of an answer. An answer of a proxy has none, so its status speaks. */
    public static function of(Http\Response $response): self
    {
        $document = json_decode($response->body, true);
        if (!\is_array($document) || !\is_string($document['code'] ?? null)) {
            $text = substr(trim($response->body), 0, 200);
            return new self('http_' . $response->status, 'Not an answer of tickr', $text, $response->status);
        }
        return new self(
            $document['code'],
            (string) ($document['title'] ?? ''),
            (string) ($document['detail'] ?? ''),
            $response->status,
            $document,
        );
    }
}
