<?php

return [
    'default' => 'tickr',
    'connections' => [
        'tickr' => [
            'driver' => 'tickr',
            'url' => env('TICKR_URL'),
            'token' => env('TICKR_TOKEN'),
            'work_token' => env('TICKR_WORK_TOKEN'),
            'kind' => 'laravel-shop',
            'queue' => 'laravel-shop',
        ],
    ],
    'failed' => ['driver' => 'null'],
];
