<?php

declare(strict_types=1);

namespace Tickr;

/**
 * JSON text that is passed on as it is.
 *
 * PHP reads integers above 64 bits and long decimals as something else, and an empty object as an empty array. Give a
 * payload or a result as RawJson when that matters.
 */
final class RawJson
{
    /** @throws \InvalidArgumentException when the text is not JSON */
    public function __construct(public readonly string $text)
    {
        // As an array: a key that begins with a null character cannot be a property of an object.
        json_decode($text, true);
        if (json_last_error() !== JSON_ERROR_NONE) {
            throw new \InvalidArgumentException('this is not JSON: ' . json_last_error_msg());
        }
    }

    public function decode(): mixed
    {
        return Json::decode($this->text);
    }
}
