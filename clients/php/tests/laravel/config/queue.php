<?php

return [
    'default' => 'tickr',
    'connections' => [
        'tickr' => [
            'driver' => 'tickr', 'kind' => getenv('TICKR_TEST_KIND'), 'queue' => getenv('TICKR_TEST_QUEUE'),
            'block_for' => 1, 'lease' => 10,
        ],
        'outbox' => [
            'driver' => 'tickr', 'kind' => getenv('TICKR_TEST_KIND'), 'queue' => getenv('TICKR_TEST_QUEUE'),
            'outbox' => 'shop',
        ],
    ],
    'failed' => ['driver' => 'database-uuids', 'database' => 'sqlite', 'table' => 'failed_jobs'],
    'batching' => ['database' => 'sqlite', 'table' => 'job_batches'],
];
